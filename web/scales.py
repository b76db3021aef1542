"""The colours: the scale that carries θ, the one for changes, the greys for other readings, and the inks around them.

Charts are drawn from here, pages from `static/style.css`; a test holds the two together.
"""

from __future__ import annotations

THETA_TONES = (
    *("#56697f", "#5e7084", "#66778a", "#6e7e8f", "#768694", "#7e8d9a", "#87949f", "#8f9ca3"),
    *("#9aa3a5", "#a4a9a7", "#aeb0a9", "#b8b7ab", "#c3bead", "#cdc5ae", "#d8ccaf", "#dec9a8"),
    *("#e1c09a", "#e3b68d", "#e5ac7f", "#e5a373", "#e2996a", "#df8f61", "#db8558", "#d87b4e"),
    *("#d47045", "#d0663c", "#cb5c34", "#c4532e", "#bd4928", "#b73f22", "#b0351c", "#a92a16"),
)
"""From 0° (even noise) to 90° (few strong weights) in even steps."""

CHANGE_TONES = (*("#2c5f8a", "#5781a5", "#81a4c0", "#b5c5d0", "#e8e5de", "#d5b8c3", "#be8da5", "#a56483", "#8a3a63"),)
"""From the largest fall to the largest rise; the fifth is no change."""

SHARE_TONES_LIGHT = (
    *("#f1ede4", "#e2dfd7", "#d4d1cb", "#c5c4bf", "#b7b6b2", "#a9a9a6", "#9b9c9b", "#8e8f8f"),
    *("#818383", "#737678", "#676a6d", "#5a5e62", "#4e5257", "#42474c", "#363c42", "#2b3138"),
)
SHARE_TONES_DARK = (
    *("#262c32", "#31373c", "#3c4246", "#484d51", "#54585c", "#616467", "#6d7072", "#7a7d7d"),
    *("#878989", "#959695", "#a2a3a1", "#b0b0ad", "#bebdb9", "#cccbc6", "#dad8d2", "#e9e6df"),
)
"""From none to all of something that is not θ, in greys: colour is for θ."""

LIGHT = {"paper": "#faf8f3", "plate": "#fffdf8", "ink": "#1b1e22", "quiet": "#585c63", "line": "#d9d4c7"}
DARK = {"paper": "#121518", "plate": "#171b1f", "ink": "#e8e5de", "quiet": "#a6aab0", "line": "#31373e"}
"""What is no reading: ground, text, hairlines."""
