"""The figures of two revisions side by side: what is read, in which order they run, and what is
said of them.
"""

from bench.compare import BASE, THIS, Key, compared, figures_in, lines_of, order

OUTPUT = """starting
{"figure": "p50", "value": 2.5, "unit": "ms", "n": 9, "setting": {"at": 1}}
{"figure": "p50", "value": 3, "unit": "ms", "n": 9, "setting": {"at": 2}}
{"figure": "lost", "value": null, "unit": "", "n": 0, "setting": {"skipped": "no browser"}}
{"figure": "name", "value": "text", "unit": "", "n": 0, "setting": {}}
{"other": 1}
[1]
{broken
"""


def test_figures_are_read_and_other_lines_are_passed_over() -> None:
    assert list(figures_in(OUTPUT)) == [
        (Key("p50", 0), 2.5, "ms"),
        (Key("p50", 1), 3.0, "ms"),
    ]


def test_revisions_run_in_turns_and_neither_is_always_first() -> None:
    assert order(3) == [BASE, THIS, THIS, BASE, BASE, THIS]


def test_medians_are_compared() -> None:
    key, zero = Key("p50", 0), Key("lost", 0)
    base = {key: [10.0, 4.0, 5.0], zero: [0.0], Key("old", 0): [1.0]}
    this = {key: [4.0, 2.5, 2.0], zero: [0.0], Key("new", 0): [1.0]}
    rows = compared(base, this, {key: "ms", zero: ""})
    assert [(row.key, row.base, row.this, row.ratio) for row in rows] == [
        (key, 5.0, 2.5, 0.5),
        (zero, 0.0, 0.0, None),
    ]
    assert (rows[0].base_range, rows[0].this_range) == ((4.0, 10.0), (2.0, 4.0))


def test_the_table_says_what_only_one_revision_has() -> None:
    key = Key("p50", 1)
    rows = compared({key: [5.0]}, {key: [2.5]}, {key: "ms"})
    assert list(lines_of(rows, [Key("new", 0)])) == [
        "figure   base  this  ratio  unit  range of base  range of this",
        "p50 (2)  5     2.5   0.500  ms    5 to 5         2.5 to 2.5",
        "new: only one of the revisions has it",
    ]
