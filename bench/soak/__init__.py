"""A long run: a real cluster under churn, with what each process uses recorded every few seconds.

`python -m bench.soak` writes CSV files and a plot, and prints the slope of each curve with its
confidence interval. A process that uses more the longer it runs shows here and in no short test.
"""
