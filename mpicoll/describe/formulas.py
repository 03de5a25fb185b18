"""The formulas of docstrings as people write them: 2 * n * (p - 1) / p becomes 2 n (p − 1) / p."""

from __future__ import annotations

import ast

from ..schedules.claims import AT_MOST

LEVELS: dict[type[ast.AST], int] = {ast.Add: 1, ast.Sub: 1, ast.Mult: 2, ast.Div: 2, ast.Pow: 4}
SIGNS: dict[type[ast.AST], str] = {
    ast.Add: " + ", ast.Sub: " − ", ast.Mult: " ", ast.Div: " / ", ast.Pow: "^",
    ast.Mod: " mod ", ast.BitAnd: " & ", ast.BitOr: " or ", ast.BitXor: " xor ", ast.LShift: " << ", ast.RShift: " >> ",
    ast.Gt: ">", ast.GtE: "≥", ast.Lt: "<", ast.LtE: "≤", ast.Eq: "=", ast.NotEq: "≠", ast.And: " and ", ast.Or: " or ",
}  # fmt: skip
WHOLE, LOOSE, POWER, NAME = 0, 0.5, 4, 5  # how tightly the surrounding operator binds


def pretty(expression: str) -> str:
    """Return a formula of the docstring grammar, readable; what it has no form for stays Python.

    [p > q] is 1 where that holds and 0 elsewhere.

    >>> pretty("2 * n * (p - 1) / p"), pretty("at most lg(q) + 2 * (p > q)")
    ('2 n (p − 1) / p', 'at most lg q + 2 [p > q]')
    >>> pretty("max(a - m for g in groups for m in [n * len(g)])")
    'max(a − m for g in groups where m = n len(g))'
    >>> pretty("sum(len(g) for i in range(1, k, ports))")
    'sum(len(g) for i from 1 to below k in steps of ports)'
    >>> pretty("2 * -(-(p - 1) // k)"), pretty("n / 2 * (p > 1)"), pretty("n if p > q else 0")
    ('2 ⌈(p − 1) / k⌉', '(n / 2) [p > 1]', 'n if p > q, else 0')
    >>> pretty("n / p * max([0] + [2 * m - 1 for i in range(lg(p)) if (m := min(2**i, p - 2**i)) > 1])")
    '(n / p) max(0, 2 m − 1 for i < lg p where m = min(2^i, p − 2^i) > 1)'
    """
    bound = AT_MOST if expression.startswith(AT_MOST) else ""
    return bound + _Writer().write(ast.parse(expression.removeprefix(AT_MOST), mode="eval").body)


class _Writer:
    """Writes an expression, in parentheses where the surrounding operator binds more tightly."""

    def write(self, node: ast.expr, around: float = WHOLE) -> str:
        """Return the text of a node; around: how tightly the surrounding operator binds."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return method(node, around) if method else ast.unparse(node)

    def _binop(self, node: ast.BinOp, around: float) -> str:
        left, right, sign = node.left, node.right, SIGNS.get(type(node.op), "?")
        level = LEVELS.get(type(node.op), LOOSE)
        if isinstance(node.op, ast.FloorDiv):
            return f"⌊{self._ratio(left, right)}⌋"
        if level == LOOSE:  # rare operators, whose precedence readers do not know
            text = f"{self.write(left, POWER)}{sign}{self.write(right, POWER)}"
        elif isinstance(node.op, ast.Mult):
            first = self.write(left, POWER if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div) else level)
            second = self.write(right, level)
            text = first + (" · " if second[0].isdigit() else sign) + second
        else:
            strict = not isinstance(node.op, ast.Add)
            text = self.write(left, level) + sign + self.write(right, level + strict)
        return f"({text})" if level < around else text

    def _ratio(self, above: ast.expr, below: ast.expr) -> str:
        return self.write(ast.BinOp(above, ast.Div(), below))

    def _unaryop(self, node: ast.UnaryOp, around: float) -> str:
        if not isinstance(node.op, ast.USub):
            return ast.unparse(node)
        if isinstance(node.operand, ast.BinOp) and isinstance(node.operand.op, ast.FloorDiv):
            above = node.operand.left
            if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.USub):
                return f"⌈{self._ratio(above.operand, node.operand.right)}⌉"
        return f"−{self.write(node.operand, POWER)}"

    def _compare(self, node: ast.Compare, around: float) -> str:
        return f"[{self._truth(node)}]"

    def _boolop(self, node: ast.BoolOp, around: float) -> str:
        return f"[{self._truth(node)}]"

    def _truth(self, node: ast.expr) -> str:
        """Return a condition, without the brackets that make it a number."""
        if isinstance(node, ast.BoolOp):
            return SIGNS[type(node.op)].join(map(self._truth, node.values))
        if not isinstance(node, ast.Compare):
            return self.write(node)
        text = self.write(node.left)
        for op, right in zip(node.ops, node.comparators, strict=True):
            text += f" {SIGNS.get(type(op), 'in')} {self.write(right)}"
        return text

    def _ifexp(self, node: ast.IfExp, around: float) -> str:
        text = f"{self.write(node.body)} if {self._truth(node.test)}, else {self.write(node.orelse)}"
        return f"({text})" if around else text

    def _namedexpr(self, node: ast.NamedExpr, around: float) -> str:
        return f"{self.write(node.target)} = {self.write(node.value)}"

    def _constant(self, node: ast.Constant, around: float) -> str:
        return str(node.value)

    def _call(self, node: ast.Call, around: float) -> str:
        name, words = self.write(node.func), self._arguments(node.args)
        if name == "lg" and len(node.args) == 2:
            return f"lg_{self.write(node.args[1], NAME)} {self.write(node.args[0], NAME)}"
        if name == "lg" and isinstance(node.args[0], ast.Name):
            return f"lg {words}"
        return f"{name}({words})"

    def _arguments(self, arguments: list[ast.expr]) -> str:
        """Write lists within max and the like as more arguments."""
        flat: list[str] = []
        for node in arguments:
            flat += self._items(node)
        return ", ".join(flat)

    def _items(self, node: ast.expr) -> list[str]:
        if isinstance(node, ast.List):
            return [self.write(x) for x in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.List):
            return self._items(node.left) + self._items(node.right)
        return [self.write(node)]

    def _generatorexp(self, node: ast.GeneratorExp | ast.ListComp, around: float) -> str:
        text = self.write(node.elt)
        for part in node.generators:
            if isinstance(part.iter, ast.List) and len(part.iter.elts) == 1:
                text += f" where {self.write(part.target)} = {self.write(part.iter.elts[0])}"
            else:
                text += f" for {self.write(part.target)} {self._over(part.iter)}"
            text += "".join(f" where {self._truth(test)}" for test in part.ifs)
        return text

    _listcomp = _generatorexp

    def _over(self, node: ast.expr) -> str:
        if isinstance(node, ast.Call) and self.write(node.func) == "range":
            first, *end = map(self.write, node.args)
            return f"from {first} to below {' in steps of '.join(end)}" if end else f"< {first}"
        return f"in {self.write(node)}"
