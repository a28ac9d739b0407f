from channels.generic.websocket import AsyncJsonWebsocketConsumer


class JobConsumer(AsyncJsonWebsocketConsumer):
    pass


class JobListConsumer(AsyncJsonWebsocketConsumer):
    pass
