import json
import sys

from tests.netsim.scenarios import backends, ends, probes, switch

for module in (backends, ends, probes, switch):
    if sys.argv[1] in vars(module):
        print(json.dumps(vars(module)[sys.argv[1]]()))
        break
else:
    sys.exit(f"There is no scenario {sys.argv[1]}.")
