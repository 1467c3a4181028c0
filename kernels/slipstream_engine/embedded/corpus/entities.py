"""Names, numbers, dates and products for the templates, drawn from sets too large to memorise.

Held-out examples use surnames that no training example can contain (`is_held_out_name`), so a correct name in a
held-out answer was copied from the prompt.
"""

from __future__ import annotations

import random
import zlib


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


_GIVEN = _words(
    "Anna Bela Carl Dana Emil Fara Gita Hugo Ines Jona Kira Liam Mara Nils Olga Paul Rosa Sami Tara Ugo Vera Wim "
    "Yara Zoe Amir Bruno Clara David Elena Felix Greta Henri Ivan Julia Kamil Lena Marco Nadia Oscar Priya Rahul "
    "Sofia Tomas Ursula Viktor Wanda Yusuf Maria Peter Laura James Sarah Daniel Emma Robert Alice Kevin Grace"
)
_HEADS = _words(
    "Tol Bran Mar Kes Vel Dor Lind Hof Strom Fal Gar Hal Jen Kro Lam Mor Nor Ost Pel Quin Ras Sand Tor Ul Wal "
    "Zim Ber Cal Den Er Fen Gol Hart Ing Kal Ler Mey Nak Oli Pre Ros Sal Tan Var Wes Ban Cor Dal"
)
_MIDS = ("a", "e", "i", "o", "en", "er", "ol", "in", "an", "")
_TAILS = _words("vik berg ley son mann ska rova dez ner lund sen ford ville ton ack itz ello ard wick man ova ström")
_PRODUCTS = _words(
    "wireless headphones|coffee machine|running shoes|office chair|smart watch|robot vacuum|desk lamp|laptop bag|"
    "air purifier|phone case|rain jacket|gaming mouse|electric kettle|standing desk|fitness tracker|USB charger|"
    "garden hose|bluetooth speaker|mountain bike|external monitor|winter coat|baby monitor|power bank|toaster|"
    "mobile plan|broadband plan|home insurance|electricity contract|streaming package|gym membership|"
    "security camera|washing machine|dining table|tablet|camera lens|hiking boots|blender|wall heater",
    "|",
)
_CITIES = _words(
    "Arnhem Bergen Cadiz Delft Essen Fulda Ghent Hull Izmir Jena Krakow Lille Malmo Nantes Oslo Porto Riga Siena "
    "Turin Utrecht Vienna Leeds York Zurich Bonn Dijon Lyon Graz Brno Cork Derby Exeter"
)
WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
CURRENCIES = ("EUR", "EUR", "USD", "GBP")


def is_held_out_name(surname: str) -> bool:
    return zlib.crc32(surname.encode()) % 8 == 0


class World:
    """Draws entities for one example; everything follows from `rng`."""

    def __init__(self, rng: random.Random, *, held_out: bool) -> None:
        self.rng = rng
        self._held_out = held_out
        self._currency = rng.choice(CURRENCIES)

    def surname(self) -> str:
        while True:
            name = self.rng.choice(_HEADS) + self.rng.choice(_MIDS) + self.rng.choice(_TAILS)
            if is_held_out_name(name) == self._held_out:
                return name

    def given(self) -> str:
        return self.rng.choice(_GIVEN)

    def person(self) -> str:
        return f"{self.given()} {self.surname()}"

    def product(self) -> str:
        return self.rng.choice(_PRODUCTS)

    def city(self) -> str:
        return self.rng.choice(_CITIES)

    def digits(self, count: int) -> str:
        return str(self.rng.randint(1, 9)) + "".join(str(self.rng.randint(0, 9)) for _ in range(count - 1))

    def order_id(self) -> str:
        return self.digits(self.rng.choice((5, 5, 6, 6, 7)))

    def account_id(self) -> str:
        return self.digits(self.rng.choice((6, 7, 7, 8)))

    def code(self) -> str:
        """A contract, case or invoice number such as `KV-48213` or `C7-20931-44`."""
        letters = "ABCDEFGHKLMNPRSTVWXZ"
        head = self.rng.choice(letters) + self.rng.choice(letters + "123456789")
        form = self.rng.random()
        if form < 0.5:
            return f"{head}-{self.digits(5)}"
        if form < 0.8:
            return f"{head}-{self.digits(4)}-{self.digits(2)}"
        return f"{head}{self.digits(6)}"

    def amount(self) -> str:
        """An amount with its currency; one currency within an example."""
        whole = self.rng.choice((self.rng.randint(4, 99), self.rng.randint(100, 999), self.rng.randint(10, 4999)))
        return f"{whole}.{self.rng.choice(('00', '50', '90', '99', self.digits(2)))} {self._currency}"

    def date(self) -> str:
        return f"{self.rng.randint(1, 28)} {self.rng.choice(MONTHS)} {self.rng.choice((2025, 2026, 2026, 2027))}"

    def iso_date(self) -> str:
        year = self.rng.choice((2025, 2026))
        return f"{year}-{self.rng.randint(1, 12):02d}-{self.rng.randint(1, 28):02d}"

    def weekday(self) -> str:
        return self.rng.choice(WEEKDAYS)

    def email(self, person: str) -> str:
        given, surname = person.lower().replace("ö", "o").split()
        host = self.rng.choice(("example.com", "example.org", "mail.example", "post.example"))
        local = self.rng.choice((f"{given}.{surname}", f"{given[0]}{surname}", f"{surname}{self.digits(2)}"))
        return f"{local}@{host}"
