"""Print what a list of orders is worth: python3 report.py orders.csv"""

import csv
import sys


def total(path):
    amount = 0
    with open(path) as file:
        for row in csv.DictReader(file):
            amount += int(row["price"])
    return amount


if __name__ == "__main__":
    print(f"total: {total(sys.argv[1])}")
