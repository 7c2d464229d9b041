"""Results of a batch, loaded by their names in the manifest: models, explanations and held-out scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import glmfit

from ..estimators.class_model import ClassModel
from ..estimators.model import model_from_file
from ..estimators.population_model import PopulationModel
from ..files import DAMAGED, load_npz
from .held_out.explained import from_file
from .results import check_result, find_result, held_out

if TYPE_CHECKING:
    import pandas as pd

    from ..inference import Explanation


def load_result(path: str | Path, session: str | None = None, model: str | None = None) -> PopulationModel | ClassModel:
    """Load the model of one fit.

    Parameters
    ----------
    path : str or pathlib.Path
        The output folder of a batch, OUT, or a file of ``OUT/results``.
    session, model : str, optional
        Names of the fit in the manifest that was run last, such as "track/rat1" and "place". One of them is enough if
        only one fit has it.

    Returns
    -------
    PopulationGLM, PopulationGLMCV, PopulationGAM, SoftmaxGLM, SoftmaxGLMCV, MultinomialGLM or MultinomialGLMCV
        The fitted model.

    Raises
    ------
    ValueError
        If the file is damaged or not a result, or if the names match no fit or several.
    FileNotFoundError
        If the file does not exist, or the fit has no result yet.
    """

    def fitted(header, arrays, facts):
        return model_from_file(getattr(glmfit, header["class"]), header, arrays)

    return _load(path, session, model, fitted)


def load_explanation(path: str | Path, session: str | None = None, model: str | None = None) -> Explanation:
    """Load the contributions of groups of features in one fit of a model with ``[model.explain]``.

    Parameters
    ----------
    path, session, model :
        As in `load_result`.

    Returns
    -------
    Explanation
        As returned by `glmfit.inference.explain`, for the units of the model in the same file.

    Raises
    ------
    ValueError, FileNotFoundError
        If its model has no ``[model.explain]`` (ValueError), and as in `load_result`.
    """

    def explanation(header, arrays, facts):
        found = header["batch"].get("explain")
        return None if found is None else from_file(found, arrays)

    return _load(path, session, model, explanation, "no explanation: give the model {} a table [model.explain]")


def load_scores(path: str | Path, session: str | None = None, model: str | None = None) -> pd.DataFrame:
    """Load the scores of the held-out rows of each fold of one fit.

    Parameters
    ----------
    path, session, model :
        As in `load_result`.

    Returns
    -------
    pandas.DataFrame
        A row per fold, a column per unit (neuron, or class, whose scores are all those of the model): the scores that
        ``[model.score]`` asks for, or those of a cross-validation at the strength that it chose. nan where there is
        none. ``attrs["scoring"]`` is the name of the score. Their mean over the folds is ``held_out_score`` of the
        index.

    Raises
    ------
    ValueError, FileNotFoundError
        If the fit has no held-out scores (ValueError), and as in `load_result`.
    """
    import pandas as pd

    def scores(header, arrays, facts):
        scoring, values = held_out(header, arrays, np.asarray(facts["strength"]))
        if not values.shape[1]:
            return None
        frame = pd.DataFrame(values.T, columns=pd.Index(facts["unit"], name="unit"))
        frame.index.name, frame.attrs["scoring"] = "fold", scoring
        return frame

    return _load(path, session, model, scores, "no held-out scores: give the model {} a table [model.score]")


def _load(path, session: str | None, model: str | None, read, missing: str = ""):
    """Read something from the file of a fit, given as a path or by its names in a folder.

    ``read`` gets the header, the arrays and the columns of the index; ``missing`` what is lacking if it finds None.
    """
    key = None
    if Path(path).is_dir():
        path = find_result(Path(path), session, model)
        key = path.stem
    elif session is not None or model is not None:
        raise ValueError(f"session and model name a fit of a batch, but {path} is not its output folder.")
    header, arrays = load_npz(Path(path))
    try:
        found = read(header, arrays, check_result(header, arrays, key))
    except DAMAGED as error:
        raise ValueError(f"{path} is not a complete result ({error}). Remove it and run the manifest again.") from error
    if found is None:
        name = '"' + header["batch"]["model"] + '"'
        raise ValueError(f"{path} has {missing.format(name)} in the manifest.")
    return found
