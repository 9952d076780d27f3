"""The journal: what is whole is read, what is torn is not, what was changed is noticed."""

from pathlib import Path

import pytest

from coterie.runs.journal import Journal, Mark, entries


@pytest.fixture
def written(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "deep" / "journal")
    journal.append([(b"r", b"one"), (b"t", b"x" * 100)])
    journal.append([(b"r", b""), (b"r", b"two")])
    return journal


def test_entries_come_back_in_order_by_their_kind(written: Journal) -> None:
    assert list(entries(written.path, b"r")) == [b"one", b"", b"two"]
    assert list(entries(written.path, b"t")) == [b"x" * 100]


def test_whatever_of_the_file_is_there_its_whole_entries_are_read(written: Journal) -> None:
    whole = written.path.read_bytes()
    ends = {12: [b"one"], 121: [b"one"], 130: [b"one", b""], 142: [b"one", b"", b"two"]}
    for length in range(len(whole) + 1):
        written.path.write_bytes(whole[:length])
        expected = [found for end, found in ends.items() if end <= length]
        assert list(entries(written.path, b"r")) == (expected[-1] if expected else [])


def test_a_length_beyond_the_file_allocates_nothing(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"r" + (10**12).to_bytes(8, "little") + b"short")
    assert list(entries(tmp_path / "journal", b"r")) == []


def test_a_journal_goes_on_from_a_mark_and_forgets_the_rest(written: Journal) -> None:
    mark = written.mark()
    written.append([(b"r", b"lost")])
    again = Journal(written.path)
    assert again.back_to(mark) and again.mark() == mark
    again.append([(b"r", b"new")])
    assert list(entries(written.path, b"r")) == [b"one", b"", b"two", b"new"]
    assert Journal(written.path).back_to(again.mark())


def test_a_change_before_the_mark_is_noticed_and_one_after_it_is_not(written: Journal) -> None:
    mark, whole = written.mark(), written.path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        written.path.write_bytes(changed)
        assert not Journal(written.path).back_to(mark)
    written.path.write_bytes(whole[:-1])
    assert not Journal(written.path).back_to(mark)
    written.path.write_bytes(whole + b"torn")
    assert Journal(written.path).back_to(mark)
    written.path.unlink()
    assert not Journal(written.path).back_to(mark)
    assert Journal(written.path).back_to(Journal(written.path).mark())  # nothing was written, nothing is missing


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append([])
    assert not journal.path.exists() and journal.mark() == Mark(0, Journal(tmp_path).mark().sha256)
