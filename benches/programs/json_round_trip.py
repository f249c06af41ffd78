import json

rows = json.loads(json.dumps([{"a": i, "b": str(i), "c": [i, i + 1]} for i in range(20_000)]))
