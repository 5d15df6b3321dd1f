"""A character language model with a small transformer: several learners side by side, kept together by model averaging.

    python recipes/transformer.py
    python recipes/transformer.py model.layers=4

conf/recipe/transformer.yaml holds the settings; transformer_pytorch.py is the same without bow.
"""

import sys

import bow

settings = bow.recipe("transformer", *sys.argv[1:])
result = bow.train(**settings)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
