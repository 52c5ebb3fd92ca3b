"""Peak rate of the device, for model FLOPs utilisation: known by the GPU's name, or measured by a matrix product.

Utilisation counts 3 forward passes of FLOPs a training step (forward, and twice that backward; Chowdhery et al. 2022,
arXiv:2204.02311, appendix B).
"""

from __future__ import annotations

import time

import torch

HALF_PRECISION = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A40": 149.7e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "T4": 65e12,
    "V100": 125e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
}
"""Dense FLOP/s of bfloat16 or float16 matrix products, from the makers' data sheets; the first name found counts."""


def peak_flops(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of large matrix products on `device` in `dtype`: from the table for half precision, else measured."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for known, rate in HALF_PRECISION.items():
            if known in name:
                return rate
    return measured_flops(device, dtype)


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.2) -> float:
    """The best of repeated (n, n) x (n, n) products within about `seconds`, in FLOP/s. Draws no random numbers."""
    size = 512 if device.type == "cpu" else 8192
    left = torch.ones(size, size, device=device, dtype=dtype)
    right, out = torch.ones_like(left), torch.empty_like(left)
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        _wait(device)
        start = time.perf_counter()
        torch.mm(left, right, out=out)
        _wait(device)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() > end:
            return 2 * size**3 / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
