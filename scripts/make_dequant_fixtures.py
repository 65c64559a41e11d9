#!/usr/bin/env python3
# /// script
# dependencies = ["gguf==0.19.0", "numpy==2.4.6"]
# ///
"""Makes tests/fixtures/dequant: blocks of every weight format and the f32 that the gguf package widens them to.

Per format NAME.blocks (raw blocks) and NAME.f32 (their weights, little-endian); formats.txt lists name, number in GGUF
files, weights and bytes of a block, all as the gguf package has them. Made once with the versions above and fixed
seeds; run again only to add a format: a row of SCALES, or of FLOATS. Earlier files must come out unchanged.

Scales are always finite, so that no NaN hides a difference. Signalling f16 NaNs are left out: numpy keeps or quiets
them depending on the processor.
"""

import random
import struct
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

RANDOM_BLOCKS = 8
OUT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "dequant"

# Offsets of the f16 scales in a block (scale, then minimum); everything else in it may be any byte.
SCALES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
}

# f16 bits of (scale, minimum): negative, least and greatest subnormals, greatest magnitudes, minus zero.
EDGE_SCALES = [(0xB123, 0x2C56), (0x0001, 0x83FF), (0x03FF, 0x8001), (0xFBFF, 0x7BFF), (0x8000, 0x3555)]

# Bytes, exponent mask and special bit patterns: zeros, subnormals, greatest, infinities, NaNs.
FLOATS = {
    Type.F32: (4, 0x7F800000, [0, 1 << 31, 1, 0x807FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001]),
    Type.F16: (2, 0x7C00, [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01]),
    Type.BF16: (2, 0x7F80, [0, 0x8000, 1, 0x807F, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF]),
}


def ordinary_scale(rng):
    """f16 bits of 2^-5 to 2^-1, either sign: scale and minimum are close enough for their sum to round."""
    return rng.randrange(2) << 15 | rng.randrange(10, 14) << 10 | rng.randrange(1024)


def with_scales(block, offsets, scales):
    block = bytearray(block)
    for offset, bits in zip(offsets, scales):
        struct.pack_into("<H", block, offset, bits)
    return bytes(block)


def scaled_blocks(rng, offsets, size):
    for _ in range(RANDOM_BLOCKS):
        yield with_scales(rng.randbytes(size), offsets, [ordinary_scale(rng) for _ in offsets])
    for scales in EDGE_SCALES:
        yield with_scales(rng.randbytes(size), offsets, scales)
    for quants in (b"\x00", b"\xff"):
        yield with_scales(quants * size, offsets, (0x3A5B, 0xB123))


def float_blocks(rng, size, exponent, specials):
    for bits in specials:
        yield bits.to_bytes(size, "little")
    for _ in range(120):
        bits = int.from_bytes(rng.randbytes(size), "little")
        if bits & exponent != exponent:
            yield bits.to_bytes(size, "little")


def mxfp4_blocks(rng):
    """Every exponent; the last three only with quants small enough for a finite product."""
    for exponent in range(256):
        magnitudes = {253: 6, 254: 4, 255: 2}.get(exponent, 8)
        nibbles = [rng.randrange(2) << 3 | rng.randrange(magnitudes) for _ in range(32)]
        yield bytes([exponent, *(high << 4 | low for low, high in zip(nibbles[::2], nibbles[1::2]))])
    yield bytes([120, *(16 * quant + 15 - quant for quant in range(16))])


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines = [f"# gguf {version('gguf')}, numpy {np.__version__}: name, number, weights and bytes of a block"]
    for kind in sorted([*FLOATS, *SCALES, Type.MXFP4]):
        rng = random.Random(f"dequant {kind.name}")
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if kind in FLOATS:
            blocks = list(float_blocks(rng, *FLOATS[kind]))
        elif kind in SCALES:
            blocks = list(scaled_blocks(rng, SCALES[kind], size))
        else:
            blocks = list(mxfp4_blocks(rng))
        raw = b"".join(blocks)
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(len(blocks), size)
        weights = gguf.dequantize(rows, kind).astype("<f4", copy=False)
        assert weights.size == len(blocks) * block, kind.name
        assert kind in FLOATS or np.isfinite(weights).all(), kind.name
        (OUT / f"{kind.name}.blocks").write_bytes(raw)
        (OUT / f"{kind.name}.f32").write_bytes(weights.tobytes())
        lines.append(f"{kind.name} {kind.value} {block} {size}")
    (OUT / "formats.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
