"""scikit-learn estimators: kernel regression and learned attention over the training rows. NumPy in, NumPy out."""

from regard.estimators.attention import AttentionClassifier as AttentionClassifier
from regard.estimators.attention import AttentionRegressor as AttentionRegressor
from regard.estimators.local_polynomial import LocalPolynomialRegressor as LocalPolynomialRegressor
from regard.estimators.nadaraya_watson import NadarayaWatsonClassifier as NadarayaWatsonClassifier
from regard.estimators.nadaraya_watson import NadarayaWatsonRegressor as NadarayaWatsonRegressor
from regard.estimators.quantiles import LocalQuantileRegressor as LocalQuantileRegressor
