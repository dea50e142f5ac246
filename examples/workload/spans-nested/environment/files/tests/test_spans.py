"""What the library promises, by example."""

import unittest

from spans import Span, SpanSet, format_day, format_spans, parse_day, parse_spans, render


class SetTest(unittest.TestCase):
    def test_touching_spans_are_one(self):
        self.assertEqual(SpanSet.of((1, 3), (3, 5)).spans, (Span(1, 5),))

    def test_union_and_intersection(self):
        one, two = SpanSet.of((0, 4)), SpanSet.of((2, 9))
        self.assertEqual(one | two, SpanSet.of((0, 9)))
        self.assertEqual(one & two, SpanSet.of((2, 4)))

    def test_gaps(self):
        self.assertEqual(SpanSet.of((0, 2), (5, 6)).gaps(), SpanSet.of((2, 5)))

    def test_an_empty_span_is_refused(self):
        with self.assertRaises(ValueError):
            SpanSet.of((3, 3))


class TextTest(unittest.TestCase):
    def test_round_trip(self):
        self.assertEqual(format_spans(parse_spans("9, 1-4,5")), "1-5, 9")

    def test_backwards(self):
        with self.assertRaises(ValueError):
            parse_spans("5-1")


class ClockTest(unittest.TestCase):
    def test_round_trip(self):
        self.assertEqual(format_day(parse_day("13:00-14:00, 09:00-12:30")), "09:00-12:30, 13:00-14:00")


class TableTest(unittest.TestCase):
    def test_numbers_to_the_right(self):
        self.assertEqual(render(("name", "n"), [("a", 5), ("bc", 10)]), "name   n\n----  --\na      5\nbc    10")
