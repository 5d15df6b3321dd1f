"""From the operators that PyTorch exports to those that are split."""

from bow.planning.tiles.translations import layers as layers
from bow.planning.tiles.translations import views as views
from bow.planning.tiles.translations.layers import pointwise as pointwise
from bow.planning.tiles.translations.table import TRANSLATIONS as TRANSLATIONS
from bow.planning.tiles.translations.table import Exported as Exported
from bow.planning.tiles.translations.table import Result as Result
from bow.planning.tiles.translations.table import exported_call as exported_call
