"""Temporal search attributes."""

SEARCH_ATTRIBUTES = {
    "GyreRun": "Keyword",
    "GyreGroup": "Keyword",
    "GyreTask": "Keyword",
    "GyreStage": "Keyword",
    "GyreDisposition": "Keyword",
    "GyreCell": "Keyword",
    "GyrePolicyVersion": "Int",
    "GyreReward": "Double",
}
"""Name -> type, in the words of Temporal's command line. Registered before any workflow starts."""
