"""Push or pull: by how many followers an author has, with room in between."""

from __future__ import annotations

PUSHED, PULLED = "push", "pull"
SLACK = 0.8  # a pulled author goes back to push well below the threshold


def wanted_mode(followers: int, mode: str, threshold: int) -> tuple[str, str] | None:
    """The mode to change to, and why; None to stay."""
    if mode == PUSHED and followers >= threshold:
        return PULLED, f"{followers:,} followers, {threshold:,} or more are pulled"
    if mode == PULLED and followers < threshold * SLACK:
        low = int(threshold * SLACK)
        return PUSHED, f"{followers:,} followers, fewer than {low:,} are pushed again"
    return None
