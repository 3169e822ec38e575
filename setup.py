"""What pyproject.toml cannot say in a settled way: the extensions that a build may do without."""

from setuptools import Extension, setup

COMPILED = [
    Extension("kvstream.layout._columns", ["kvstream/layout/_columns.pyx"], optional=True),
    Extension("kvstream.layout._compiled", ["kvstream/layout/_compiled.pyx"], optional=True),
    Extension("kvstream.layout._packing", ["kvstream/layout/_packing.pyx"], optional=True),
    Extension("kvstream.rdb._compiled", ["kvstream/rdb/_compiled.pyx"], optional=True),
    Extension("kvstream.resp._wire", ["kvstream/resp/_wire.pyx"], optional=True),
    Extension("kvstream.storage._proofs", ["kvstream/storage/_proofs.pyx"], optional=True),
    Extension("kvstream.storage._reading", ["kvstream/storage/_reading.pyx"], optional=True),
    Extension("kvstream.storage._tables", ["kvstream/storage/_tables.pyx"], optional=True),
]

setup(ext_modules=COMPILED)
