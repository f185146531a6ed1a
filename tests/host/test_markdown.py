import pytest

from host.markdown import table


def test_a_table_has_headers_rules_and_rows():
    assert table(["name", "s"], [["a", "1.5"], ["b|c", ""]], "lr") == (
        "| name | s |\n| --- | ---: |\n| a | 1.5 |\n| b\\|c |  |"
    )
    assert table(["reason"], [["RuntimeError: a\nb"]]).endswith("\n| RuntimeError: a b |")
    assert table(["a", "b"], []) == "| a | b |\n| --- | --- |"


def test_columns_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"2 columns need as many cells, got \['1'\]"):
        table(["a", "b"], [["1"]])
    with pytest.raises(ValueError, match="2 columns need as many letters, got align='l'"):
        table(["a", "b"], [], "l")
