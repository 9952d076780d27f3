"""Files that survive a crash."""

from coterie.durable import sync, sync_all


def test_a_file_that_another_process_moves_meanwhile_does_not_end_the_work(tmp_path, monkeypatch):
    (tmp_path / "whole").write_bytes(b"1")
    (tmp_path / "part").symlink_to(tmp_path / "moved")  # listed, and not there when it is opened
    synced = []
    monkeypatch.setattr("coterie.durable.sync", lambda path: (sync(path), synced.append(path)))
    sync_all(tmp_path)
    assert synced == [tmp_path / "whole", tmp_path]
