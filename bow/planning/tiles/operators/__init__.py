"""Operators by family: translation from PyTorch's exported operators, and computation of tiles."""

from bow.planning.tiles.operators import layers as layers
from bow.planning.tiles.operators import losses as losses
from bow.planning.tiles.operators import views as views
from bow.planning.tiles.operators import windows as windows
from bow.planning.tiles.operators.calls import TRANSLATIONS as TRANSLATIONS
