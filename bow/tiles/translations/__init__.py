"""From the operators that PyTorch exports to those that are split."""

from bow.tiles.translations import layers as layers
from bow.tiles.translations import recurrent as recurrent
from bow.tiles.translations import views as views
from bow.tiles.translations.elements import pointwise as pointwise
from bow.tiles.translations.table import TRANSLATIONS as TRANSLATIONS
from bow.tiles.translations.table import Exported as Exported
from bow.tiles.translations.table import Result as Result
from bow.tiles.translations.table import exported_call as exported_call
