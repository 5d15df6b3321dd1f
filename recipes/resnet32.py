"""ResNet-32 on pictures of CIFAR-10's shape: several learners side by side, kept together by model averaging.

    python recipes/resnet32.py
    python recipes/resnet32.py data=cifar10 data.root=DIR epochs=100

conf/recipe/resnet32.yaml holds the settings; resnet32_pytorch.py is the same without bow.
"""

import sys

import bow

settings = bow.recipe("resnet32", *sys.argv[1:])
result = bow.train(**settings)
print(f"accuracy {result.metrics['accuracy']:.2%}, {result.throughput:,.0f} samples/s with {result.learners} learners")
