"""LeNet on handwritten digits: several learners side by side, kept together by model averaging.

    python recipes/lenet.py
    python recipes/lenet.py data=fashion_mnist learners=8

conf/recipe/lenet.yaml holds the settings; lenet_pytorch.py is the same without bow.
"""

import sys

import bow

settings = bow.recipe("lenet", *sys.argv[1:])
result = bow.train(**settings)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
