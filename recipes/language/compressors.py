"""What general compressors make of a text, in bits per character: an anchor that needs no training."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Sequence

__all__ = ["compressor_bits"]


def compressor_bits(train: Sequence[str], test: Sequence[str]) -> dict[str, float]:
    """Bits per character of the test text: by zlib, bz2 and xz alone, and by xz when it has read train before.

    The last is the size of train and test together less that of train.
    """
    before, after = ("\n".join(documents).encode() for documents in (train, test))
    characters = max(sum(map(len, test)), 1)
    found = {
        "zlib": len(zlib.compress(after, 9)),
        "bz2": len(bz2.compress(after, 9)),
        "xz": len(_xz(after)),
        "xz after train": len(_xz(before + b"\n" + after)) - len(_xz(before)),
    }
    return {name: 8 * size / characters for name, size in found.items()}


def _xz(data: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": max(1 << 16, min(len(data) + 1, 1 << 26))}]
    return lzma.compress(data, format=lzma.FORMAT_XZ, filters=filters)
