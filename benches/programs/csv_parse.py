import csv
import io

text = "\n".join(f"{i},name {i},\"quoted, {i}\",{i * 0.5}" for i in range(20_000))
rows = list(csv.reader(io.StringIO(text)))
total = sum(float(row[3]) for row in rows)
