"""The time that algorithms take on a network, by a model of messages: networks, profiles of schedules, their cost."""
