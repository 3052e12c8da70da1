"""What a new version stands on: the versions that its writer had read, and no others.

A writer who reads, thinks and saves may have been overtaken meanwhile. Standing on what was read makes the new version
concurrent to what was not, which is a conflict that everybody sees; standing on whatever is current would hide it. A
`Document` carries all that is needed, even of a version that is no longer kept; ids alone are looked up.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.client.document import Document
from anabranch.client.errors import NoSuchVersion
from anabranch.client.file import ReplicaFile
from anabranch.core.operation import Family
from anabranch.core.replica import Version

Base = Document | Iterable[str]
"""A document as it was read, or the ids of its versions. No ids: it was not there."""


def ids(base: Base) -> frozenset[str]:
    if isinstance(base, Document):
        return frozenset(version.id for version in base.versions)
    return frozenset([base] if isinstance(base, str) else base)


def versions(base: Base, d: str, file: ReplicaFile) -> list[Version]:
    """The versions to stand on; `NoSuchVersion` where one is not of this document, or cannot be told any more."""
    wanted = ids(base)
    found = {one.version.id: one.version for one in file.some(d, wanted)}
    if isinstance(base, Document) and base.d == d and file.family is Family.SNAPSHOT:
        for one in base.versions:  # a snapshot that was trimmed is known by its clock
            if one.clock:
                version = Version(one.id, d, one.deleted, one.mtime, base.collection, one.clock)
                found.setdefault(one.id, version)
    for id in sorted(wanted - found.keys()):
        raise NoSuchVersion(d, id)
    return [found[id] for id in sorted(wanted)]
