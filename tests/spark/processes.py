"""Process functions that the workers of the Spark tests import."""

from floodplain.operators.process import KeyedProcess
from floodplain.state.descriptors import List, Value


class Count(KeyedProcess):
    n = Value("long", default=0)
    total = Value("long", default=0)
    output = "user string, n long, total long"

    def process(self, key, rows, ctx):
        self.n.set(self.n.get() + len(rows))
        self.total.set(self.total.get() + sum(row.amount for row in rows))
        yield key.user, self.n.get(), self.total.get()


class ByCount(KeyedProcess):
    users = List("string")
    output = "n long, users array<string>"

    def process(self, key, rows, ctx):
        for row in rows:
            self.users.append(row.user)
        yield key.n, sorted(self.users)
