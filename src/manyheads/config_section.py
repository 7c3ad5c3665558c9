"""What every table of the config is: strict, and refused in one line that names the field."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from manyheads import config_options
from manyheads.config_errors import first_error, unknown_key
from manyheads.errors import InputError

KEYS: dict[str, list[str]] = {}
"""The keys of every table, by its name; filled as the tables are defined."""


class Section(BaseModel):
    """A table of the config. Raises ``InputError`` where pydantic would raise its own many-line error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
    section: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if cls.section:
            KEYS[cls.section] = list(cls.model_fields)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(first_error(error, type(self), self.section, KEYS)) from None


class OptionSection(Section):
    """A table whose first key chooses something from a catalog and whose other keys are the options of that choice.

    Options that are left out get the catalog's defaults, so that a resolved config says everything.
    """

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the choice, all of them, in the catalog's order."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        fields, given = type(self).model_fields, self.options
        defaults = config_options.defaults(self.section, getattr(self, next(iter(fields))))
        for key in given:
            if defaults is not None and key not in defaults:
                raise InputError(unknown_key(self.section, key, [*fields, *defaults], KEYS))
        resolved = {
            key: config_options.check(f"{self.section}.{key}", given.get(key, default), default)
            for key, default in (dict.fromkeys(given) if defaults is None else defaults).items()
        }
        object.__setattr__(self, "__pydantic_extra__", resolved)
        return self
