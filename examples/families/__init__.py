"""The families of example tasks, in order of name."""

from examples.families import (
    append_line,
    copy_file,
    count_lines,
    cut_column,
    filter_lines,
    join_files,
    make_directories,
    pick_line,
    print_number,
    rename_file,
    reverse_lines,
    sort_lines,
    sum_numbers,
    symlink,
    uppercase,
    write_word,
)
from examples.spec import Family

FAMILIES: tuple[Family, ...] = (
    append_line.FAMILY,
    copy_file.FAMILY,
    count_lines.FAMILY,
    cut_column.FAMILY,
    filter_lines.FAMILY,
    join_files.FAMILY,
    make_directories.FAMILY,
    pick_line.FAMILY,
    print_number.FAMILY,
    rename_file.FAMILY,
    reverse_lines.FAMILY,
    sort_lines.FAMILY,
    sum_numbers.FAMILY,
    symlink.FAMILY,
    uppercase.FAMILY,
    write_word.FAMILY,
)
