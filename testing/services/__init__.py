# SPDX-License-Identifier: GPL-2.0-or-later
"""Real services on free loopback ports, each in a temporary folder, none of which outlives the process that started it.

    with Kafka() as kafka:
        open_log(kafka.url)
        kafka.kill()     # SIGKILL, as a power cut would
        kafka.restart()  # same port, same data

`kafka.Kafka`, `rabbitmq.RabbitMQ` and `aws.Aws` start their own; `existing.py` lets environment variables point to others.
A service that cannot be started raises `ServiceMissing` with one line: what is missing and what to do.
"""
