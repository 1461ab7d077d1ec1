"""Matrix factorisation predicts the ratings of 500 people for 300 films, from a tenth of the ratings.

Run: python examples/recommender.py. A rating is the sum of a mean, a term of the person, a term of the film, and the
product of their factors. The gradient of an embedding goes only to the rows of the batch. Koren et al. 2009.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

PEOPLE, FILMS, FACTORS, BATCH = 500, 300, 8, 512


class Model(tg.Module):
    def __init__(self):
        self.person, self.film = nn.Embedding(PEOPLE, FACTORS), nn.Embedding(FILMS, FACTORS)
        self.of_person, self.of_film = nn.Embedding(PEOPLE, 1), nn.Embedding(FILMS, 1)
        self.mean = self.param((), init=tg.init.zeros())

    def __call__(self, person: tg.Tensor, film: tg.Tensor) -> tg.Tensor:
        fit = tg.sum(self.person(person) * self.film(film), axis=-1)
        return self.mean + self.of_person(person)[:, 0] + self.of_film(film)[:, 0] + fit


def loss(m: Model, person: tg.Tensor, film: tg.Tensor, rating: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(m(person, film), rating)


def ratings(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (person, film, rating) for every pair, in random order."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.standard_normal((PEOPLE, 4)), rng.standard_normal((FILMS, 4))
    table = 3 + taste @ kind.T / 3 + 0.1 * rng.standard_normal((PEOPLE, FILMS))
    person, film = np.divmod(rng.permutation(table.size), FILMS)
    return person.astype(np.int32), film.astype(np.int32), table[person, film].astype(np.float32)


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs = {"person": tg.i32[BATCH], "film": tg.i32[BATCH], "rating": (BATCH,)}
    optimizer = optim.adamw(lr=1e-2, weight_decay=0.1, decay_filter=lambda name: name.endswith("W"))
    return tg.compile(model=Model(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    person, film, rating = (values[: PEOPLE * FILMS // 10] for values in ratings())
    rng = np.random.default_rng(1)
    for _ in range(steps):
        picked = rng.integers(0, len(rating), BATCH)
        yield {"person": person[picked], "film": film[picked], "rating": rating[picked]}


def main(steps: int = 1500, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps))
        person, film, rating = (values[-10_000:] for values in ratings())
        inputs = {"person": tg.i32[10_000], "film": tg.i32[10_000]}
        found = train.attach(forward=Model.__call__, inputs=inputs).run(person=person, film=film).output
    share = float(np.square(found - rating).mean() / rating.var())
    print(f"of the variance of unseen ratings {1 - share:.0%} is explained")
    return share


if __name__ == "__main__":
    main()
