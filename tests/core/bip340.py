"""BIP-340 verification in plain integers: the slow oracle of `nostr.verify`."""

import hashlib

P = 2**256 - 2**32 - 977
N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
G = (
    0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
    0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8,
)

Point = tuple[int, int] | None


def verifies(message: bytes, pubkey: bytes, signature: bytes) -> bool:
    point, r, s = _lift(int.from_bytes(pubkey, "big")), *(int.from_bytes(half, "big") for half in _halves(signature))
    if point is None or r >= P or s >= N:
        return False
    tag = hashlib.sha256(b"BIP0340/challenge").digest()
    e = int.from_bytes(hashlib.sha256(tag + tag + signature[:32] + pubkey + message).digest(), "big") % N
    found = _add(_times(G, s), _times(point, N - e))
    return found is not None and found[1] % 2 == 0 and found[0] == r


def _halves(signature: bytes) -> tuple[bytes, bytes]:
    return signature[:32], signature[32:]


def _lift(x: int) -> Point:
    if x >= P:
        return None
    square = (pow(x, 3, P) + 7) % P
    y = pow(square, (P + 1) // 4, P)
    if pow(y, 2, P) != square:
        return None
    return x, y if y % 2 == 0 else P - y


def _add(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and a[1] != b[1]:
        return None
    rise, run = (3 * a[0] * a[0], 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = rise * pow(run, -1, P) % P
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def _times(point: Point, factor: int) -> Point:
    result: Point = None
    while factor:
        if factor & 1:
            result = _add(result, point)
        point, factor = _add(point, point), factor >> 1
    return result
