{{- define "istio-aux.labels" -}}
app.kubernetes.io/name: istio-aux
{{- end }}

{{- define "istio-aux.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The Secret that holds the certificate, as files or as the webhook's own. */ -}}
{{- define "istio-aux.secret" -}}
{{- if eq .Values.certificate.from "secret" }}{{ required "certificate.secretName: the Secret of the certificate, for certificate.from=secret" .Values.certificate.secretName }}
{{- else if eq .Values.certificate.from "cert-manager" }}istio-aux-tls
{{- else }}istio-aux-certificate
{{- end }}
{{- end }}
