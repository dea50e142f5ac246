"""What a box leaves, given away or removed: links stay links, and depth stops nobody."""

import os
from pathlib import Path

import pytest

from adapters.sandboxes.removal import give_tree, remove_box
from domain.errors import SandboxError

OWNER = 54_321


def nested(root: Path, levels: int) -> Path:
    """Make a directory in a directory, so often, below one that is not deep."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    return root


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_tree_is_given_away_and_what_its_links_lead_to_is_not(tmp_path: Path) -> None:
    """Files, directories and links change hands, in many directories at once; their targets outside do not."""
    outside = tmp_path / "outside"
    outside.touch()
    tree = tmp_path / "tree"
    for number in range(300):
        (tree / f"d{number}" / "inner").mkdir(parents=True)
        (tree / f"d{number}" / "inner" / "f").touch()
    (tree / "link").symlink_to(outside)
    give_tree(tree, OWNER)
    given = [tree, *tree.rglob("*")]
    assert len(given) == 902
    assert {path.lstat().st_uid for path in given} == {path.lstat().st_gid for path in given} == {OWNER}
    assert outside.stat().st_uid == os.geteuid()


def test_a_tree_too_deep_is_named_and_still_removed(tmp_path: Path) -> None:
    """Neither recursion nor open files end the process."""
    root = tmp_path / "deep"
    root.mkdir()
    nested(root, 3000)
    if os.geteuid() == 0:
        with pytest.raises(SandboxError, match="levels deep"):
            give_tree(root, OWNER)
    remove_box(root)
    assert not root.exists()
