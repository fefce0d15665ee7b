"""Import every module of the package ``client`` below the folder, and print their number."""

import importlib
import pkgutil
import sys

sys.path.insert(0, sys.argv[1])

package = importlib.import_module("client")
names = [found.name for found in pkgutil.walk_packages(package.__path__, "client.")]
for name in names:
    importlib.import_module(name)
print(len(names))
