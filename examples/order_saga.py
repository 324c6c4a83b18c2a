"""An order in durable steps: paid, packed, shipped; and taken back in reverse order when a step fails.

python examples/order_saga.py
"""

from __future__ import annotations

from beside import worker_for

from dray import App, Context, JobFailed

app = App("order-saga")


def pay(order: str) -> str:
    print(f"paid: {order}", flush=True)
    return f"payment-{order}"


def refund(payment: str) -> None:
    print(f"refunded: {payment}", flush=True)


def pack(order: str) -> str:
    print(f"packed: {order}", flush=True)
    return f"parcel-{order}"


def unpack(parcel: str) -> None:
    print(f"unpacked: {parcel}", flush=True)


def ship(parcel: str) -> str:
    if parcel.endswith("moon"):
        raise LookupError("nobody delivers there")
    return f"{parcel} is on its way"


@app.task
async def order(ctx: Context, id: str) -> str:
    await ctx.step(pay, id, undo=refund)
    parcel = await ctx.step(pack, id, undo=unpack)
    await ctx.sleep("1.5s")  # the lorry comes later: no slot is held until then
    return await ctx.step(ship, parcel, retries=1, backoff="fixed:100ms")


def main() -> None:
    jobs = [order.enqueue("berlin"), order.enqueue("moon")]
    with worker_for(__file__):
        for job in jobs:
            try:
                print("result:", job.get(timeout=30))
            except JobFailed as failure:
                print("failed:", failure.message)
    for step in jobs[1].steps():
        print(f"{step.id}: {step.status}")


if __name__ == "__main__":
    main()
