"""Handwritten digits, read by a dense layer, by a convolution, and by attention to what a convolution sees.

1797 images of 8 x 8 pixels (Alpaydin & Kaynak 1998; they come with scikit-learn), three in four of them to learn from.
What differs is how much of the picture's geometry a network is given. The dense layer has a weight for every two
pixels; the convolution sweeps one small window over all, and its features h_ij get a weight for every pixel or are
pooled:

    dense        h_oij = sum_kl w_oijkl x_kl
    convolution  h_oij = sum_c sum_ab v_ocab x_c,i+a,j+b
    mean         sum_ij h_ij / 64
    maximum      max_ij h_ij
    attention    sum_ij softmax_ij(score(W_q q, W_k [h_ij; p_ij])) W_v h_ij     q is learned, p_ij says where ij is

New digits are read by all but the mean, 98 in 100 and more. One pixel further left or right, whoever has a weight for
every pixel misses nearly every second one. What is pooled may stand anywhere: attention, with half of the convolution's
weights, still reads 94 in 100, and the maximum 98, to which a stroke is there or is not.

python examples/11_digits.py [--small]
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from regard.nn import AveragePooling, Convolution2d, DenseImage2d, MaxPooling, MultiHeadAttention

SIZE, CHANNELS = 8, 32


class Pixels(nn.Module):
    """The pixels as a set: (B, 64, C) of an image (B, C, 8, 8)."""

    def forward(self, image: Tensor) -> Tensor:
        return image.flatten(2).transpose(1, 2)


class AttentionPooling(nn.Module):
    """What four learned queries find among the pixels: (B, 4 C) of (B, 64, C)."""

    position: Tensor

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        axis = torch.arange(SIZE) * torch.pi / SIZE
        waves = torch.stack([wave(n * axis) for n in (1, 2) for wave in (torch.sin, torch.cos)], dim=-1)
        rows, columns = waves.repeat_interleave(SIZE, dim=0), waves.repeat(SIZE, 1)
        self.register_buffer("position", torch.cat([rows, columns], dim=-1))  # (64, 8)
        self.query = nn.Parameter(torch.randn(4, features))
        self.attention = MultiHeadAttention(features, heads, kdim=features + 8)

    def forward(self, pixels: Tensor) -> Tensor:
        key = torch.cat([pixels, self.position.expand(len(pixels), -1, -1)], dim=-1)
        return self.attention(self.query, key, pixels).flatten(1)


def convolved(*rest: nn.Module) -> nn.Sequential:
    """Two convolutions of 3 x 3, and what comes after."""
    first, second = Convolution2d(1, CHANNELS, delta=1), Convolution2d(CHANNELS, CHANNELS, delta=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *rest)


def networks() -> dict[str, nn.Module]:
    """What is compared: each gives ten numbers per image."""
    pixels = 16 * SIZE**2, CHANNELS * SIZE**2
    dense = DenseImage2d(1, 16, image_size=(SIZE, SIZE))
    return {
        "dense": nn.Sequential(dense, nn.ReLU(), nn.Flatten(), nn.Linear(pixels[0], 10)),
        "convolution": convolved(nn.Flatten(), nn.Linear(pixels[1], 10)),
        "convolution, mean": convolved(Pixels(), AveragePooling(), nn.Linear(CHANNELS, 10)),
        "convolution, maximum": convolved(Pixels(), MaxPooling(), nn.Linear(CHANNELS, 10)),
        "convolution, attention": convolved(Pixels(), AttentionPooling(CHANNELS, heads=4), nn.Linear(4 * CHANNELS, 10)),
    }


def train(network: nn.Module, image: Tensor, digit: Tensor, steps: int) -> None:
    """Adam on 64 images at a time, with a step that falls to 0."""
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        drawn = torch.randint(len(image), (64,))
        loss = nn.functional.cross_entropy(network(image[drawn]), digit[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def accuracy(network: nn.Module, image: Tensor, digit: Tensor) -> float:
    """The share of the images that are read correctly."""
    with torch.no_grad():
        return (network(image).argmax(dim=-1) == digit).double().mean().item()


def moved(image: Tensor, columns: int) -> Tensor:
    """The images, one column (1 or -1) further right; what comes in at the side is empty."""
    padded = nn.functional.pad(image, (1, 1))
    return padded[..., 1 - columns : 1 - columns + SIZE]


def main(small: bool) -> None:
    data, order = load_digits(), torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    image = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16  # (1797, 1, 8, 8)
    digit, cut = torch.tensor(data.target)[order], 1797 * 3 // 4
    test = image[cut:], digit[cut:]
    print(f"{'':<24} parameters  new digits  moved by a pixel")
    torch.manual_seed(0)
    for name, network in networks().items():
        if small and name not in ("dense", "convolution, attention"):
            continue
        train(network, image[:cut], digit[:cut], steps=150 if small else 1000)
        there = accuracy(network, *test)
        aside = sum(accuracy(network, moved(test[0], columns), test[1]) for columns in (1, -1)) / 2
        print(
            f"{name:<24} {sum(p.numel() for p in network.parameters()):>10,} {there:>11.1%} {aside:>17.1%}", flush=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="two of them, 150 steps instead of 1000")
    main(parser.parse_args().small)
