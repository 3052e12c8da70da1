"""The states of a link, and what leads from one to another: the table that the machine runs and the docs draw.

A link is `live` only while the stream is there and the comparison found no difference. Whatever casts doubt on the
checkpoint leads to `repairing`, and from there only the comparison leads back. `degraded_poll` compares by polling
while the stream cannot be had.
"""

from __future__ import annotations

from enum import StrEnum


class LinkState(StrEnum):
    INITIAL = "initial"
    LIVE = "live"
    DEGRADED_POLL = "degraded_poll"
    REPAIRING = "repairing"
    PAUSED = "paused"


class Phase(StrEnum):
    """How far a link has come on its present connection."""

    OFFLINE = "offline"
    DIALLING = "dialling"
    AUTHENTICATING = "proving to the peer who we are"
    ANCHORING = "asking for an operation that the peer must have"
    RECONCILING = "comparing and closing the difference"
    TAILING = "replaying the stream"
    STREAMING = "following the stream"


class Cue(StrEnum):
    CAUGHT_UP = "caught_up"
    GAP = "gap"
    OVERFLOW = "overflow"
    CLOSURE = "closure"
    DISORDER = "disorder"
    DIVERGED = "diverged"
    EXHAUSTED = "exhausted"
    REPAIR = "repair"
    PAUSE = "pause"
    RESUME = "resume"
    RESET = "reset"


CUE_WORDS = {
    Cue.CAUGHT_UP: "the stream is there, and nothing was found to differ",
    Cue.GAP: "the checkpoint is of no use in the peer's log, or in ours",
    Cue.OVERFLOW: "more is pending than may be",
    Cue.CLOSURE: "something that an operation needs is not to be had",
    Cue.DISORDER: "the peer broke the order of its own log",
    Cue.DIVERGED: "the digests differ, and stay so",
    Cue.EXHAUSTED: "the stream cannot be had",
    Cue.REPAIR: "the operator asks for a repair",
    Cue.PAUSE: "the operator pauses the link",
    Cue.RESUME: "the operator lets it go on",
    Cue.RESET: "the operator lets it begin anew",
}

_DOUBTS = dict.fromkeys(
    (Cue.GAP, Cue.OVERFLOW, Cue.CLOSURE, Cue.DISORDER, Cue.DIVERGED, Cue.REPAIR), LinkState.REPAIRING
)
_OPERATOR = {Cue.PAUSE: LinkState.PAUSED, Cue.RESET: LinkState.INITIAL}
_ANYWHERE = {**_DOUBTS, **_OPERATOR, Cue.EXHAUSTED: LinkState.DEGRADED_POLL}

TRANSITIONS: dict[LinkState, dict[Cue, LinkState]] = {
    LinkState.INITIAL: {Cue.CAUGHT_UP: LinkState.LIVE, **_ANYWHERE},
    LinkState.LIVE: _ANYWHERE,
    LinkState.DEGRADED_POLL: {Cue.CAUGHT_UP: LinkState.LIVE, **_DOUBTS, **_OPERATOR},
    LinkState.REPAIRING: {Cue.CAUGHT_UP: LinkState.LIVE, **_ANYWHERE},
    LinkState.PAUSED: {Cue.RESUME: LinkState.INITIAL, Cue.RESET: LinkState.PAUSED},
}


def diagram() -> str:
    """The table as a Mermaid state diagram, as the docs show it."""
    lines = ["stateDiagram-v2", "    [*] --> initial"]
    for state, cues in TRANSITIONS.items():
        reached: dict[LinkState, list[str]] = {}
        for cue, target in cues.items():
            if target is not state:
                reached.setdefault(target, []).append(cue)
        lines += [f"    {state} --> {target}: {', '.join(names)}" for target, names in reached.items()]
    return "\n".join(lines)
