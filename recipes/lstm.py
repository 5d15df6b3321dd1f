"""A character language model with two LSTM layers: several learners side by side, kept together by model averaging.

    python recipes/lstm.py
    python recipes/lstm.py model.hidden=256

conf/recipe/lstm.yaml holds the settings; lstm_pytorch.py is the same without bow.
"""

import sys

import bow

settings = bow.recipe("lstm", *sys.argv[1:])
result = bow.train(**settings)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
