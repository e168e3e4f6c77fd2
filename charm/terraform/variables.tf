variable "app_name" {
  description = "Name of the application in the model"
  type        = string
  default     = "istio-aux"
}

variable "base" {
  description = "Base of the charm; the charm's own where it is null"
  type        = string
  default     = null
}

variable "channel" {
  description = "Channel of the charm"
  type        = string
  default     = "latest/stable"
}

variable "config" {
  description = "Options of the application, as charmcraft.yaml has them"
  type        = map(string)
  default     = {}
}

variable "constraints" {
  description = "Constraints of the charm's units, such as arch=amd64; the webhook has pods of its own, without them"
  type        = string
  default     = null
}

variable "model_uuid" {
  description = "UUID of the model to deploy to"
  type        = string
}

variable "resources" {
  description = "Images of the application: webhook-image"
  type        = map(string)
  default     = {}
}

variable "revision" {
  description = "Revision of the charm; the channel's newest where it is null"
  type        = number
  default     = null
}

variable "units" {
  description = "How many units; one leads, and the webhook has two replicas at least"
  type        = number
  default     = 2

  validation {
    condition     = var.units >= 0 && floor(var.units) == var.units
    error_message = "units is a whole number, 0 or more."
  }
}
