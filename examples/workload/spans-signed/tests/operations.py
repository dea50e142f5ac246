from spans import Span, SpanSet, format_day, format_spans, parse_day, parse_spans, render


def pairs(numbers):
    return [[int(span.start), int(span.end)] for span in numbers.spans]


def made(given):
    return SpanSet.of(*map(tuple, given))


def of(given):
    return pairs(made(given))


def union(one, two):
    return pairs(made(one) | made(two))


def intersection(one, two):
    return pairs(made(one) & made(two))


def difference(one, two):
    first, second = made(one), made(two)
    left = first - second
    return [pairs(left), left == first.difference(second), pairs(first), pairs(second)]


def gaps(given):
    return pairs(made(given).gaps())


def size(given):
    return len(made(given))


def has(given, number):
    return number in made(given)


def many(count):
    return len(SpanSet(Span(3 * n, 3 * n + 2) for n in range(count)))


def parsed(text):
    return pairs(parse_spans(text))


def formatted(given):
    return format_spans(made(given))


def around(text):
    return format_spans(parse_spans(text))


def day(text):
    return [pairs(parse_day(text)), format_day(parse_day(text))]


def table(header, rows):
    return render(header, rows)


def cut_table(header, rows, limit):
    return render(header, rows, limit=limit)
