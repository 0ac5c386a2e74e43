"""Temporal search attributes: name -> type, in the words of Temporal's command line."""

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
"""Registered with the namespace before any workflow starts."""
