"""Logistic regression on handwritten digits: several learners side by side, kept together by model averaging.

    python recipes/logistic_regression.py
    python recipes/logistic_regression.py learners=2 engine=eager

conf/recipe/logistic_regression.yaml holds the settings; logistic_regression_pytorch.py is the same without bow.
"""

import sys

import bow

settings = bow.recipe("logistic_regression", *sys.argv[1:])
result = bow.train(**settings)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
