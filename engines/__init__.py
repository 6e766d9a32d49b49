"""Ground floor: language-model engines, the embedding engine and the response cache."""
