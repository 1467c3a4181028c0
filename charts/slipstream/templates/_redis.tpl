{{/* "true" if the chart runs a Redis: a URL in the values replaces it. */}}
{{- define "slipstream.ownRedis" -}}
{{- if and .Values.redis.enabled (not .Values.redis.url) (not .Values.redis.existingSecret.name) -}}true{{- end -}}
{{- end -}}

{{- define "slipstream.hasRedis" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret.name .Values.redis.enabled -}}true{{- end -}}
{{- end -}}

{{/* redis.conf without the password. Writes are appended to a file, so that a restart loses no data; nothing is evicted. */}}
{{- define "slipstream.redisConf" -}}
port 6379
save ""
appendonly yes
maxmemory {{ .Values.redis.maxMemory }}
maxmemory-policy noeviction
{{- end -}}

{{/* Environment variable of gateway and operator with the Redis URL. */}}
{{- define "slipstream.redisEnv" -}}
{{- if eq (include "slipstream.hasRedis" .) "true" -}}
- name: SLIPSTREAM_REDIS_URL
  valueFrom:
    secretKeyRef:
      {{- if .Values.redis.existingSecret.name }}
      name: {{ .Values.redis.existingSecret.name | quote }}
      key: {{ .Values.redis.existingSecret.key | quote }}
      {{- else }}
      name: {{ include "slipstream.fullname" . }}-redis
      key: url
      {{- end }}
{{- end }}
{{- end -}}

{{/*
A checksum of the Redis settings that restarts the pods on a change; without a generated password, which is looked up.
*/}}
{{- define "slipstream.redisChecksum" -}}
{{- $redis := .Values.redis -}}
{{- printf "%s %s %s %s" $redis.url $redis.existingSecret.name (include "slipstream.ownRedis" .) $redis.password | sha256sum | trunc 16 -}}
{{- end -}}
