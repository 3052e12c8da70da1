"""Reading by pages, against relays with any limit and any events, among them such as nobody can take: an honest relay
is never accused, and what was not found is in a second that is called unsure."""

from collections import deque
from typing import Any

import msgspec
from histories import signed
from hypothesis import given
from hypothesis import strategies as st
from relay_model import RelayModel

from anabranch.core.nostr import Event, Keys
from anabranch.wire import dialogue
from anabranch.wire.dialogue import Accuse, Bounds, Effect, Found, Refuse, Send
from anabranch.wire.paging import Pages

START = 1_800_000_000
SECONDS, CROWD = 5, 14
NOTES = [
    [signed(content=f"{second} {n}", created_at=START + second) for n in range(CROWD)] for second in range(SECONDS)
]
_STRANGER = Keys(bytes([8]) * 32)
ODD = [[_STRANGER.sign(70_000, [], f"{n}", START + second) for n in range(6)] for second in range(SECONDS)]
FAR = [_STRANGER.sign(1, [], f"{n}", 2**60 + n) for n in range(16)]
BEFORE = _STRANGER.sign(1, [], "", -5)


def read(pages: Pages, relay: RelayModel) -> list[Effect]:
    """All that pages bring and say."""
    effects, said = deque(pages.start()), []
    while effects:
        effect = effects.popleft()
        if not isinstance(effect, Send):
            said.append(effect)
            continue
        for answer in relay.answer(effect.message):
            effects += pages.hear(dialogue.read(msgspec.json.encode(answer))) or []
    return said


def some(lists: list[list[Event]], counts: list[int]) -> list[Event]:
    return [event for events, count in zip(lists, counts, strict=True) for event in events[:count]]


counts = st.lists(st.sampled_from([0, 0, 1, 2, 7, CROWD]), min_size=SECONDS, max_size=SECONDS)
few = st.lists(st.sampled_from([0, 0, 0, 1, 6]), min_size=SECONDS, max_size=SECONDS)
caps, pages = st.sampled_from([3, 6, 12, 500]), st.sampled_from([5, 500])
bound = st.none() | st.integers(START, START + SECONDS - 1)


@given(counts, few, st.sampled_from([0, 1, 3, 16]), st.booleans(), caps, pages, bound, bound)
def test_an_honest_relay_is_not_accused_and_nothing_is_missed_unsaid(notes, odd, far, before, cap, page, since, until):
    window: dict[str, Any] = {name: at for name, at in (("since", since), ("until", until)) if at is not None}
    here = [event for event in some(NOTES, notes) if (since or 0) <= event.created_at <= (until or 2**53)]
    events = [*some(NOTES, notes), *some(ODD, odd), *FAR[:far], *([BEFORE] if before else [])]
    relay = RelayModel(events, cap=cap)
    reader = Pages(window, bounds=Bounds(page=page))
    said = read(reader, relay)
    assert not [effect for effect in said if isinstance(effect, Accuse | Refuse)]
    found = {effect.event.id for effect in said if isinstance(effect, Found)}
    if len({event.created_at for event in events if event.created_at < 2**53}) == 1:
        return  # a relay whose whole store is one second cannot be told from one that has no more
    assert {event.created_at for event in here if event.id not in found} <= set(reader.unsure)
