"""Proofs: a signature holds exactly when BIP-340 says so."""

import msgspec
import pytest
from bip340 import verifies
from histories import signed
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import nostr

KEY = "DFF1D77F2A671C5F36183726DB2341BE58FEAE1DA2DECED843240F7B502BA659"
MESSAGE = "243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89"
S = "69E89B4C5564D00349106B8497785DD7D1D713A8AE82B32FA79D5F7FC407D39B"
R = "6CFF5C3BA86C69EA4B7376F31A9BCB4F74C1976089B2D9963DA2E5543E177769"
FIELD = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFC2F"
ORDER = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141"

VECTORS = {
    "0": (
        "F9308A019258C31049344F85F89D5229B531C845836F99B08601F113BCE036F9",
        "00" * 32,
        "E907831F80848D1069A5371B402410364BDF1C5F8307B0084C55F1CE2DCA8215"
        "25F66A4A85EA8B71E482A74F382D2CE5EBEEE8FDB2172F477DF4900D310536C0",
        True,
    ),
    "1": (
        KEY,
        MESSAGE,
        "6896BD60EEAE296DB48A229FF71DFE071BDE413E6D43F917DC8DCF8C78DE3341"
        "8906D11AC976ABCCB20B091292BFF4EA897EFCB639EA871CFA95F6DE339E4B0A",
        True,
    ),
    "3: a message beyond the field and the order": (
        "25D1DFF95105F5253C4022F628A996AD3A0D95FBF21D468A1B33F8C160D8F517",
        "FF" * 32,
        "7EB0509757E246F19449885651611CB965ECC1A187DD51B64FDA1EDC9637D5EC"
        "97582B9CB13DB3933705B32BA982AF5AF25FD78881EBB32771FC5922EFC66EA3",
        True,
    ),
    "4": (
        "D69C3509BB99E412E68B0FE8544E72837DFA30746D8BE2AA65975F29D22DC7B9",
        "4DF3C3F68FCC83B27E9D42C90431A72499F17875C81A599B566C9889B9696703",
        "00000000000000000000003B78CE563F89A0ED9414F5AA28AD0D96D6795F9C63"
        "76AFB1548AF603B3EB45C9F8207DEE1060CB71C04E80F593060B07D28308D7F4",
        True,
    ),
    "5: key not on the curve": (
        "EEFDEA4CDB677750A420FEE807EACF21EB9898AE79B9768766E4FAA04A2D4A34",
        MESSAGE,
        R + S,
        False,
    ),
    "6: R has an odd y": (
        KEY,
        MESSAGE,
        "FFF97BD5755EEEA420453A14355235D382F6472F8568A18B2F057A1460297556"
        "3CC27944640AC607CD107AE10923D9EF7A73C643E166BE5EBEAFA34B1AC553E2",
        False,
    ),
    "7: negated message": (
        KEY,
        MESSAGE,
        "1FA62E331EDBC21C394792D2AB1100A7B432B013DF3F6FF4F99FCB33E0E1515F"
        "28890B3EDB6E7189B630448B515CE4F8622A954CFE545735AAEA5134FCCDB2BD",
        False,
    ),
    "8: negated s": (KEY, MESSAGE, R + "961764B3AA9B2FFCB6EF947B6887A226E8D7C93E00C5ED0C1834FF0D0C2E6DA6", False),
    "9: R at infinity, x 0": (
        KEY,
        MESSAGE,
        "00" * 32 + "123DDA8328AF9C23A94C1FEECFD123BA4FB73476F0D594DCB65C6425BD186051",
        False,
    ),
    "11: r is no coordinate": (
        KEY,
        MESSAGE,
        "4A298DACAE57395A15D0795DDBFD1DCB564DA82B0F269BC70A74F8220429BA1D" + S,
        False,
    ),
    "12: r is the field size": (KEY, MESSAGE, FIELD + S, False),
    "13: s is the curve order": (KEY, MESSAGE, R + ORDER, False),
    "14: key beyond the field": (
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFC30",
        MESSAGE,
        R + S,
        False,
    ),
}


@pytest.mark.parametrize("key, message, signature, holds", VECTORS.values(), ids=VECTORS)
def test_the_vectors_of_bip340_are_answered_as_published(key, message, signature, holds):
    assert nostr.verify_proofs(bytes.fromhex(message + key + signature)) == bytes([holds])
    assert verifies(*map(bytes.fromhex, (message, key, signature))) is holds


def test_a_signed_event_is_proven():
    event = signed(1, [["t", "x"]], "hello")
    assert nostr.verify([event]) == [True]
    assert verifies(*map(bytes.fromhex, (event.id, event.pubkey, event.sig)))


def test_each_answer_stands_in_the_place_of_its_question():
    good, other = signed(content="one"), signed(content="two")
    forged = msgspec.structs.replace(good, sig=other.sig)
    impostor = msgspec.structs.replace(good, pubkey=signed(secret=2).pubkey)
    blank = msgspec.structs.replace(good, sig="00" * 64)
    no_key = msgspec.structs.replace(good, pubkey="ff" * 32)
    assert nostr.verify([good, forged, other, impostor, blank, no_key, good]) == [True, False, True] + [False] * 3 + [
        True
    ]
    assert nostr.verify([]) == []


@settings(max_examples=25)
@given(st.integers(0, 127), st.integers(1, 255), st.integers(1, 2**64))
def test_any_changed_byte_of_a_proof_is_noticed(at, change, secret):
    proof = bytearray(nostr.proof(signed(content="x", secret=secret)))
    assert nostr.verify_proofs(bytes(proof)) == b"\1"
    proof[at] ^= change
    holds = nostr.verify_proofs(bytes(proof))
    assert holds == b"\0"
    assert verifies(bytes(proof[:32]), bytes(proof[32:64]), bytes(proof[64:])) is bool(holds[0])
