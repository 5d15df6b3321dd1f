"""Data sets, and the stream that deals their samples to learners."""

from bow.data.characters import text as text
from bow.data.cifar import cifar10 as cifar10
from bow.data.indexed import Indexed as Indexed
from bow.data.mnist_family import fashion_mnist as fashion_mnist
from bow.data.mnist_family import mnist as mnist
from bow.data.opening import evaluation_batches as evaluation_batches
from bow.data.opening import open_stream as open_stream
from bow.data.scikit_digits import digits as digits
from bow.data.splits import DataSplits as DataSplits
from bow.data.splits import SyntheticSamples as SyntheticSamples
from bow.data.stream import Batch as Batch
from bow.data.stream import BatchStream as BatchStream
from bow.data.stream import Deal as Deal
from bow.data.synthetic import synthetic_images as synthetic_images
