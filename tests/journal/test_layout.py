import json
import stat

from mlflow_stability.journal.layout import (
    TRAINING,
    make_root,
    new_session_folder,
    remove_empty_root,
    session_folders,
)
from mlflow_stability.journal.process_identity import identity_from, identity_in_link, own_identity


def test_a_root_that_we_make_is_private_and_kept_out_of_git(tmp_path):
    root = tmp_path / "a" / "journals"
    folder = new_session_folder(root)
    assert (root / ".gitignore").read_text() == "*\n"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert session_folders(root) == [folder]


def test_a_folder_of_the_users_own_gets_no_gitignore(tmp_path):
    new_session_folder(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


def test_our_own_folder_of_an_older_version_gets_one(tmp_path):
    root = tmp_path / ".mlflow-stability"
    root.mkdir()
    make_root(root)
    assert (root / ".gitignore").exists()
    (root / ".gitignore").write_text("# mine\n")
    make_root(root)
    assert (root / ".gitignore").read_text() == "# mine\n"


def test_a_session_names_its_process(tmp_path):
    result = identity_in_link(new_session_folder(tmp_path / "j") / TRAINING)
    assert identity_from(result) == own_identity()
    assert len(json.dumps(result)) < 1000


def test_what_outlives_the_runs_is_no_session(tmp_path):
    root = tmp_path / "j"
    folder = new_session_folder(root)
    for name in ("checkpoints", "batches"):
        (root / name).mkdir()
    assert session_folders(root) == [folder]


def test_an_empty_root_is_deleted_with_its_gitignore_and_one_in_use_stays(tmp_path):
    root = tmp_path / "j"
    folder = new_session_folder(root)
    remove_empty_root(root)
    assert {path.name for path in root.iterdir()} == {".gitignore", folder.name}
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    remove_empty_root(root)
    assert not root.exists()
    remove_empty_root(root)
