"""Sequence to sequence: dates as people write them become ISO dates, and the weights show what each digit is read from.

A recurrent encoder reads "Wednesday, 4 March 1987" in both directions, h_i for each character; a recurrent decoder
writes "1987-03-04". Before each character its state s asks the h_i where to look (Bahdanau, Cho & Bengio 2015):

    a(s, h_i) = v . tanh(W_q s + W_k h_i),   c = sum_i softmax_i(a(s, h_i)) h_i,   s' = GRU(s, [last character; c])

Texts of a batch differ in length, and what fills them up is masked: a masked key is a deleted key.
The days are those of a hundred years, from 1950 on. One in ten is never shown in training, in no way of writing it;
99 in 100 of these and more come out without a mistake in any character. The weights are asked for afterwards: the
digits of the year look at the year as it was read, those of the month at the letters that tell it.

python examples/10_dates_additive.py [--small] [--picture alignment.png]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from datetime import date, timedelta

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import regard as rg

FIRST, DAYS = date(1950, 1, 1), 36_525  # a hundred years, so that two digits are a year
CHARACTERS = " '(),-./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CODE = {character: number for number, character in enumerate(CHARACTERS, start=1)}  # 0 fills up, or begins


def nth(day: int) -> str:
    """1st, 2nd, 3rd, 4th, ..."""
    return f"{day}{'th' if day in (11, 12, 13) else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"


Way = Callable[[date], str]
WAYS: list[Way] = [
    lambda d: f"{d.day} {d:%B} {d.year}",  # 4 March 1987
    lambda d: f"{d:%d/%m/%Y}",  # 04/03/1987: the day comes before the month, as nearly everywhere
    lambda d: f"{d.day}. {d.month}. {d.year}",
    lambda d: f"{d:%d.%m.%y}",  # 04.03.87
    lambda d: f"{d.day}/{d.month}/{d:%y}",
    lambda d: f"{d.year}/{d.month}/{d.day}",
    lambda d: f"{d:%Y%m%d} ({d:%a})",  # 19870304 (Wed)
    lambda d: f"{d:%B} {d.day}, {d.year}",
    lambda d: f"{d:%b} {nth(d.day)}, {d.year}",  # Mar 4th, 1987
    lambda d: f"the {nth(d.day)} of {d:%B} {d.year}",
    lambda d: f"{d:%B} the {nth(d.day)}, '{d:%y}",
    lambda d: f"{d.day}-{d:%b}-{d.year}".upper(),  # 4-MAR-1987
    lambda d: f"{d:%a %b} {d.day} {d.year}".lower(),
    lambda d: f"{d:%a} {d.day} {d:%b} {d:%y}",  # Wed 4 Mar 87
    lambda d: f"{d:%A}, {d:%B} {d.day}, {d.year}",
    lambda d: f"{d:%A}, {d.day} {d:%B} {d.year}",  # Wednesday, 4 March 1987
]


def codes(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Texts as numbers (B, longest), filled up with 0, and their lengths (B,)."""
    lengths = torch.tensor([len(text) for text in texts])
    rows = [torch.tensor([CODE[character] for character in text]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


class Translator(nn.Module):
    """A recurrent encoder, a recurrent decoder, and additive attention between them."""

    def __init__(self, embedded: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1 + len(CHARACTERS), embedded)
        self.encoder = nn.GRU(embedded, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(2 * hidden, hidden)
        self.attention = rg.nn.AdditiveAttention(query_dim=hidden, key_dim=2 * hidden, hidden_dim=hidden)
        self.decoder = nn.GRUCell(embedded + 2 * hidden, hidden)
        self.output = nn.Linear(3 * hidden, 1 + len(CHARACTERS))

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states (B, N, 2 hidden), and the first state of the decoder (B, hidden)."""
        packed = pack_padded_sequence(self.embedding(source), lengths, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states = pad_packed_sequence(states, batch_first=True)[0]
        return states, torch.tanh(self.start(last.transpose(0, 1).flatten(1)))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores of ten characters (B, 10, C), and the states that asked for them (B, 10, hidden).

        Each is told the last character: the target's in training, without a target the one that it wrote itself.
        """
        keys, state = self.encode(source, lengths)
        mask = rg.ValidLength(lengths)
        last = torch.zeros(len(source), dtype=torch.int64)
        scores, queries = [], []
        for at in range(10):
            queries.append(state)
            context = self.attention(state[:, None], keys, keys, mask=mask)[:, 0]
            state = self.decoder(torch.cat([self.embedding(last), context], dim=-1), state)
            scores.append(self.output(torch.cat([state, context], dim=-1)))
            last = scores[-1].argmax(dim=-1) if target is None else target[:, at]
        return torch.stack(scores, dim=1), torch.stack(queries, dim=1)

    def write(self, texts: list[str]) -> list[str]:
        """The ISO dates, one character after another."""
        with torch.no_grad():
            written = self(*codes(texts))[0].argmax(dim=-1)
        return ["".join(f" {CHARACTERS}"[code] for code in row) for row in written.tolist()]

    def alignment(self, text: str) -> Tensor:
        """The weights (10, N): a row per character written, a column per character read."""
        source, lengths = codes([text])
        with torch.no_grad():
            queries = self(source, lengths)[1]
            return self.attention.weights(queries, self.encode(source, lengths)[0])[0]


def train(translator: Translator, days: list[date], ways: list[Way], steps: int) -> None:
    """Adam, with a step that falls to 0, on days and ways of writing them drawn at random."""
    optimizer = torch.optim.Adam(translator.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    for step in range(1, steps + 1):
        drawn = random.choices(days, k=32)
        target = codes([day.isoformat() for day in drawn])[0]
        scores, _ = translator(*codes([random.choice(ways)(day) for day in drawn]), target)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(translator.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step == 1 or step % (steps // 4) == 0:
            print(f"step {step:>4}: loss {loss.item():.4f}", flush=True)


def exact(translator: Translator, days: list[date], way: Way) -> float:
    """The share of the days that come out right in all ten characters."""
    written = translator.write([way(day) for day in days])
    return sum(a == day.isoformat() for a, day in zip(written, days, strict=True)) / len(days)


def picture(translator: Translator, texts: list[str], path: str) -> None:
    """The weights as heatmaps: a row per character written, a column per character read."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, text in zip(figure.subplots(1, len(texts)), texts, strict=True):
        rg.plots.heatmap(
            translator.alignment(text), axes=axes, query_labels=translator.write([text])[0], key_labels=text, title=text
        )
        axes.set(xlabel="read", ylabel="written")
    figure.savefig(path, dpi=110)


def main(small: bool, path: str | None) -> None:
    torch.set_num_threads(1)  # each step is small: threads would wait for each other longer than they work
    random.seed(0)
    torch.manual_seed(0)
    days = [FIRST + timedelta(days=n) for n in range(DAYS)]
    random.shuffle(days)
    held_out, shown = days[: DAYS // 10], days[DAYS // 10 :]
    translator = Translator()
    ways = WAYS[:4] if small else WAYS
    train(translator, shown, ways, steps=120 if small else 500)

    asked = held_out[: 100 if small else 1000]
    rates = [exact(translator, asked, way) for way in ways]
    for way, rate in zip(ways, rates, strict=True):
        print(f"{way(date(1987, 3, 4)):<26} {rate:.1%}")
    print(f"days never seen, written without a mistake: {sum(rates) / len(rates):.2%}")

    text = ways[0 if small else -1](date(1987, 3, 4))
    weights, written = translator.alignment(text), translator.write([text])[0]
    print(f"{text} is {written}; each character looks most at")
    for character, row in zip(written, weights, strict=True):
        most = int(row.argmax())
        print(f"  {character}: {text[:most]}[{text[most]}]{text[most + 1 :]}, with weight {row[most]:.2f}")
    on_year = weights[:4, text.index("1987") :].sum(dim=1).min().item()
    print(f"the digits of the year give the year at least {on_year:.2f} of their weight")
    if path is not None:
        picture(translator, [text, "Mar 4th, 1987", "4/3/87"], path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="120 steps and four ways of writing")
    parser.add_argument("--picture", metavar="PNG", help="where to draw the weights")
    given = parser.parse_args()
    main(given.small, given.picture)
